"""What Early Exits prints beside our tables. Data of the paper, named by table; nothing of it is ours."""

from __future__ import annotations

THREADS = (3, 5, 10)
QUEUES = {
    ("priority", "priority"): (79.85, 62.93, 27.57),
    ("priority", "fifo"): (80.40, 63.48, 27.73),
    ("random", "priority"): (82.32, 63.25, 26.92),
    ("random", "fifo"): (84.56, 65.36, 27.68),
    ("fifo", "priority"): (82.61, 64.43, 27.69),
    ("fifo", "fifo"): (85.43, 65.67, 27.84),
}
"""Table 7: (edge queue, server queue) -> cache miss rate in percent with 3, 5 and 10 threads."""
GSM8K_RTX = {"threads": 30, "gamma": 4, "sd_over_cloud": 1.11, "fsd_over_sd": 1.08, "miss_rate": 0.124}
"""Table 6, GSM8K, Vicuna-68M/7B, RTX, at Table 5's 30 threads and gamma 4: the only points of Fig. 4 in figures."""
BATCHES = {1: 7.76, 2: 8.02, 3: 7.57, 4: 7.87, 8: 8.97, 12: 9.71, 16: 10.63, 32: 14.49}
"""Table 9: milliseconds of a client's forward (Vicuna-68M, Jetson) over its batch."""
SERVER_BATCHES = {1: 17.94, 2: 21.75, 3: 24.35, 4: 24.63, 8: 30.73, 12: 44.52, 16: 45.79, 32: 96.94}
"""Table 9: milliseconds of the server's forward (Vicuna-7B, A100) over its batch."""
COSTS = {
    "Qwen1.5-0.5B/72B": (540.0, 360.0, 270.0),
    "llama-3.1-8b/405b": (540.0, 312.0, 270.0),
    "llama3-8b/70b": (454.0, 286.0, 217.0),
    "Qwen-2-VL-7B/72B": (420.0, 390.0, 210.0),
}
"""Table 1: dollars of a million requests by cloud AR, cloud SD and edge-cloud SD, at tau 2.5."""
SPECEDGE = {
    "server only": (31.78, 1, 0, 28.25),
    "SpecEdge": (66.54, 1, 2, 50.60),
}
"""SpecEdge, Table 1, Qwen3 14B/1.7B, multi-turn bench: tokens/s of the server, A100s, RTX 4090s, 1000 tokens/$."""
