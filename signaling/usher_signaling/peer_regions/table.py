"""The regions file: which regions there are, where their signaling is, and whose clusters are whose. No I/O.

    {"version": 1, "regions": [
      {"name": "us", "url": "https://signaling.us.example.net", "clusters": [1]},
      {"name": "eu", "url": "https://signaling.eu.example.net", "clusters": [2, 3]}]}

All regions may have the same file: each has to be in it, and leaves its own entry out.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from usher_core.errors import LocalError, describe
from usher_core.ids import MAX_CLUSTER
from usher_signaling.base_urls import parse_base_url
from usher_signaling.regions import check_region

MAX_REGIONS = 64
MAX_CLUSTERS = 1000


class PeerRegion(BaseModel):
    """One region: the base URL of its signaling as other regions reach it, and its cluster ids."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    url: str
    clusters: tuple[Annotated[int, Field(ge=1, le=MAX_CLUSTER)], ...] = Field(default=(), max_length=MAX_CLUSTERS)

    @field_validator("name")
    @classmethod
    def _is_region(cls, value: str) -> str:
        return check_region(value)

    @field_validator("url")
    @classmethod
    def _is_base_url(cls, value: str) -> str:
        return parse_base_url(value)


class _RegionsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    regions: tuple[PeerRegion, ...] = Field(max_length=MAX_REGIONS)

    @model_validator(mode="after")
    def _nothing_stands_twice(self) -> Self:
        names = [region.name for region in self.regions]
        if len(set(names)) != len(names):
            raise ValueError("a region stands twice")
        clusters = [cluster for region in self.regions for cluster in region.clusters]
        if len(set(clusters)) != len(clusters):
            raise ValueError("a cluster id stands twice: each is one region's alone")
        return self


class RegionTable:
    """The other regions, in the order of the file."""

    def __init__(self, peers: tuple[PeerRegion, ...] = ()) -> None:
        self._by_name = {peer.name: peer for peer in peers}
        self._by_cluster = {cluster: peer for peer in peers for cluster in peer.clusters}

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._by_name)

    def find(self, name: str) -> PeerRegion | None:
        """Return the peer of that name, None for our own region and for one that is nobody's."""
        return self._by_name.get(name)

    def owner(self, cluster: int) -> PeerRegion | None:
        """Return the peer that has a cluster, None for ours and for one that is nobody's."""
        return self._by_cluster.get(cluster)


def parse_regions_file(text: str, own: str) -> RegionTable:
    """Return the regions of a file without our `own`. Raises LocalError that names the field at fault."""
    try:
        parsed = _RegionsFile.model_validate(json.loads(text))
    except (ValidationError, RecursionError) as error:
        raise LocalError(f"the regions file is wrong: {describe(error)}", "see docs/http-api.md, regions") from None
    except ValueError as error:  # JSONDecodeError, or a number of more than 4300 digits
        raise LocalError(f"the regions file is no JSON: {error}") from None
    names = [region.name for region in parsed.regions]
    if own not in names:
        advice = "the file names all regions, also the own one: without it calls of ours are handed on to ourselves"
        raise LocalError(f"--region {own!r} is not in the regions file ({', '.join(names) or 'empty'})", advice)
    return RegionTable(tuple(region for region in parsed.regions if region.name != own))
