"""Serves the OpenAI chat API: each request is a session of the verifier, which is asked as a robot asks it.

It runs in a process of its own and speaks the robots' protocol with the verifier, or with a cluster's gateway. So the
engine learns of no HTTP, and the limits, quotas and service classes of robots hold for requests too.
"""
