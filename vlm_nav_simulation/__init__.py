"""The simulated Go2: seeded furnished rooms, front camera, ground truth, oracle, sport service. No ROS, no torch."""
