"""The demo: a simulated Go2 finds one object; every process is the one that runs on a robot."""
