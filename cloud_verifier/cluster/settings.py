"""What a cluster is made of: how many replicas, where, and how robots reach them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.config import Link, Settings, StartError
from speculation.address import host_of

WILDCARDS = ("0.0.0.0", "*", "[::]")
DRAIN_S = 10.0
"""Default of `--drain-s` in a cluster."""
SECRET_FILE = "cluster.secret"


class ClusterSettings(Settings, frozen=True):
    """Settings of the command `cluster`. Raises StartError, see `Settings`."""

    on: Annotated[
        Literal["ray", "local"],
        Meta(description="ray: on all machines of a Ray cluster; local: on this machine, without Ray"),
    ] = "ray"
    replicas: Annotated[str, Meta(description="verifiers that run; auto: one a GPU, or one where there is none")] = (
        "auto"
    )
    min: Annotated[int, Meta(ge=0, le=1024, description="replicas at least; 0: --replicas")] = 0
    max: Annotated[int, Meta(ge=0, le=1024, description="replicas at most; 0: --replicas")] = 0
    cpus_per_replica: Annotated[
        float, Meta(ge=0, le=1024, description="Ray places a replica by so many CPUs; 0: by one GPU where there is one")
    ] = 0.0
    address: Annotated[
        str, Meta(description="Ray cluster to join, HOST:PORT or ray://HOST:PORT; empty: one is started for this alone")
    ] = ""
    host: Annotated[
        str,
        Meta(description="--on local: name or address by which robots reach this machine; default: that of --bind"),
    ] = ""
    replica_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the first replica, of the others those after it; 0: free ones")
    ] = 0
    relay: Annotated[
        bool, Meta(description="pass robots' frames on at the door, for robots that reach its port alone")
    ] = False
    stop: Annotated[
        bool, Meta(description="let all replicas of the Ray cluster at --address drain and end, and serve nothing")
    ] = False
    secret_file: Annotated[
        Path | None,
        Meta(description="secret that tickets are signed with, made where it is missing; default: in --keys"),
    ] = None

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.replicas != "auto" and not (self.replicas.isdecimal() and 1 <= int(self.replicas) <= 1024):
            raise StartError(f"--replicas {self.replicas!r}: give auto, or 1 to 1024")
        if self.replicas != "auto" and not (self.min or 1) <= int(self.replicas) <= (self.max or 1024):
            raise StartError(f"--replicas {self.replicas} is outside --min {self.min or 1} to --max {self.max or 1024}")
        of_ray = {"--address": self.address, "--stop": self.stop, "--cpus-per-replica": self.cpus_per_replica}
        for flag in [flag for flag, given in of_ray.items() if given and self.on == "local"]:
            raise StartError(f"{flag} is of a Ray cluster, which --on local does without; leave one of the two out")
        if self.host and self.on == "ray":
            raise StartError("--host is of --on local: on Ray robots are given the address that each machine has there")
        if self.stop and not self.address:
            raise StartError("--stop: give --address, the Ray cluster whose replicas are to end")

    def count(self, gpus: int) -> int:
        """Return how many replicas run at first, with so many GPUs at hand."""
        return max(1, gpus) if self.replicas == "auto" else int(self.replicas)

    def limits(self, scaling: Scaling, gpus: int) -> Scaling:
        """Return the scaling rule with this cluster's limits. Raises StartError for a maximum below the minimum."""
        count = self.count(gpus)
        least, most = self.min or min(count, self.max or count), self.max or max(count, self.min)
        try:
            limits = Scaling(least, most, *(getattr(scaling, name) for name in scaling.__struct_fields__[2:]))
        except ValueError as error:
            raise StartError(f"--{error}") from None
        if self.replica_port and self.replica_port + most > 65536:
            raise StartError(f"--replica-port {self.replica_port}: {most} replicas need that many ports from there on")
        return limits

    def reached_at(self, link: Link) -> str:
        """Return by which host robots reach the replicas of this machine. Raises StartError where that is unknown."""
        host = self.host or host_of(link.bind, any_port=True)
        if host in WILDCARDS:
            raise StartError(f"--bind {link.bind}: give --host, the name or address by which robots reach this machine")
        return host
