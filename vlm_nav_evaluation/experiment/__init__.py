"""The experiment engine: arms answer questions in turns; figures, table, plots and JSON follow from one `Run`.

A benchmark declares arms and columns. What answers is a backend: real sockets (`sockets.Edges`), decoders in this
process (`Arm.decode`), virtual time or a formula; each returns a `Run`.
"""
