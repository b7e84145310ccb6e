"""Recorded bags: written and read without ROS, played at their own pace, made with the simulator's oracle."""
