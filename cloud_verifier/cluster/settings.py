"""Declares what a cluster is made of: how many replicas, where, and how robots reach them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.tickets import SECRET_BYTES, load_secret
from cloud_verifier.config import Link, Settings, StartError

DRAIN_S = 10.0
"""The default of `--drain-s` in a cluster."""
SECRET_FILE = "cluster.secret"


class ClusterSettings(Settings, frozen=True):
    """These are the settings of the command `cluster`."""

    replicas: Annotated[
        str,
        Meta(
            description="verifiers that run; auto: one a GPU, or --gpus-per-replica of them, or one where there is none"
        ),
    ] = "auto"
    min: Annotated[int, Meta(ge=0, le=1024, description="replicas at least; 0: --replicas")] = 0
    max: Annotated[int, Meta(ge=0, le=1024, description="replicas at most; 0: --replicas")] = 0
    gpus_per_replica: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="GPUs of one machine over which a replica's model is spread; 0: as many as --device names",
        ),
    ] = 0
    cpus_per_replica: Annotated[
        float,
        Meta(ge=0, le=1024, description="Ray places a replica by so many CPUs; 0: by its GPUs where there are any"),
    ] = 0.0
    address: Annotated[
        str,
        Meta(description="Ray cluster to join, HOST:PORT or ray://HOST:PORT; empty: Ray is started on this machine"),
    ] = ""
    replica_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the first replica, of the others those after it; 0: free ones")
    ] = 0
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
        if self.stop and not self.address:
            raise StartError("--stop: give --address, the Ray cluster whose replicas are to end")

    def device(self, device: str) -> str:
        """Return the `--device` of a replica, which counts its own GPUs from 0, for what the cluster was given.

        Raises StartError where that and `gpus_per_replica` do not go together.
        """
        names = [name.strip() for name in device.split(",")]
        count, kind = self.gpus_per_replica or len(names), names[0].partition(":")[0]
        if count == len(names) == 1:
            return device
        if kind == "cpu":
            raise StartError(f"--gpus-per-replica {count}: --device {device} computes on none; give --device cuda")
        own = ",".join(f"{kind}:{number}" for number in range(count))
        if names not in ([kind], own.split(",")):
            raise StartError(
                f"--device {device}: a replica with {count} GPUs counts them from 0; give --device {own}, or "
                f"--device {kind} --gpus-per-replica {count}"
            )
        return own

    def count(self, places: int) -> int:
        """Return how many replicas run at first, with GPUs at hand for so many."""
        return max(1, places) if self.replicas == "auto" else int(self.replicas)

    def limits(self, scaling: Scaling, places: int) -> Scaling:
        """Return the scaling rule with this cluster's limits, with GPUs at hand for so many replicas.

        Raises StartError for a maximum below the minimum.
        """
        count = self.count(places)
        least, most = self.min or min(count, self.max or count), self.max or max(count, self.min)
        try:
            limits = msgspec.structs.replace(scaling, min=least, max=most)
        except ValueError as error:
            raise StartError(f"--{error}") from None
        if self.replica_port and self.replica_port + most > 65536:
            raise StartError(f"--replica-port {self.replica_port}: {most} replicas need that many ports from there on")
        return limits

    def secret(self, link: Link) -> bytes:
        """Return what tickets are signed with: from its file or, without keys, a new one. Raises StartError."""
        file = self.secret_file or (link.keys / SECRET_FILE if link.keys is not None else None)
        if file is None:
            return os.urandom(SECRET_BYTES)
        try:
            return load_secret(file)
        except (ValueError, OSError) as error:
            raise StartError(f"--secret-file {file}: {error}") from None


def places_of(gpus: Sequence[int], each: int) -> int:
    """Return for how many replicas machines with so many GPUs have room, if each has its own on one machine.

    Raises StartError where there are GPUs, but nowhere enough for one.
    """
    found = sum(count // each for count in gpus)
    if any(gpus) and not found:
        raise StartError(
            f"--gpus-per-replica {each}: no machine has so many, the largest has {max(gpus)}; give fewer, and a "
            "smaller --dtype or a --quantisation if the model does not fit them"
        )
    return found
