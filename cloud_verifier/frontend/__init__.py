"""The frontend: the socket that strangers reach, in a process of its own.

An assertion of the socket library ends the process that it happens in. So the socket, its keys and the limits of its
peers live in one process, and models, sessions, keys and values in another, which starts the frontend again when it
ends.
"""
