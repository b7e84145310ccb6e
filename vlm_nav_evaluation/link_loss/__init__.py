"""What the robot does when a part fails: every fault, at every phase of a step, in real processes."""
