"""The web page of a running robot: what it shows (`view.py`), and the server for browsers (`server.py`). No ROS."""
