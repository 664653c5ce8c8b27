"""Lowers whole KV blocks to ranges, as a planner written in Python does, and times it.

Reads a batch as JSON from standard input and writes one JSON object: nanoseconds of processor time
a range (median) for a planner that makes one object a range and for one that makes columns, and the
checksum of what each of them made. Standard library only.
"""

import json
import statistics
import sys
import time
from array import array
from dataclasses import dataclass

WARM_UPS = 3
MASK = (1 << 64) - 1
FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Region:
    layer: str
    group: int
    block_stride: int
    block_bytes: int
    segments: tuple


@dataclass(frozen=True)
class Range:
    layer: str
    group: int
    block: int
    address: int
    stride: int
    length: int
    object_offset: int


class Planner:
    def __init__(self, regions, placements):
        self.regions = regions
        self.placements = placements

    def ranges_for_block(self, block, group):
        """One object a range; object offsets count from the group's object."""
        if block < 0:
            raise ValueError(f"block {block} must be >= 0")
        ranges = []
        offset = 0
        for region in self.regions:
            if region.group != group:
                continue
            base, physical = self.placements[region.layer]
            if region.segments:
                start = base + block * physical
                at = offset
                for segment_offset, length in region.segments:
                    ranges.append(
                        Range(region.layer, group, block, start + segment_offset, physical, length, at)
                    )
                    at += length
            elif region.block_bytes <= physical:
                address = base + block * physical
                ranges.append(
                    Range(region.layer, group, block, address, physical, region.block_bytes, offset)
                )
            else:
                parts = region.block_bytes // physical
                for part in range(parts):
                    done = part * physical
                    length = min(physical, region.block_bytes - done)
                    address = base + (block * parts + part) * physical
                    ranges.append(
                        Range(region.layer, group, block, address, physical, length, offset + done)
                    )
            offset += region.block_bytes
        if not ranges:
            raise ValueError(f"group {group} is not in the layout")
        return tuple(ranges)

    def lines(self, group):
        """What does not depend on the block: base, advance, length and object offset a range."""
        lines = []
        for first in self.ranges_for_block(0, group):
            region = next(r for r in self.regions if r.layer == first.layer)
            parts = 1 if region.segments else max(1, region.block_bytes // first.stride)
            lines.append((first.address, first.stride * parts, first.length, first.object_offset))
        return lines


def lower_to_objects(planner, plans):
    return [planner.ranges_for_block(block, group) for block, group in plans]


def lower_to_columns(lines, blocks, objects):
    """Columns as a copy takes them: device address, host address, length, key."""
    device = array("q", [base + block * advance for block in blocks for base, advance, _, _ in lines])
    host = array("q", [start + offset for start in objects for _, _, _, offset in lines])
    length = array("q", [length for _, _, length, _ in lines]) * len(blocks)
    key = array("i", [i for i in range(len(blocks)) for _ in lines])
    return device, host, length, key


def checksum(triples):
    total = 0
    for address, offset, length in triples:
        total = (total * FACTOR + address) & MASK
        total = (total * FACTOR + offset) & MASK
        total = (total * FACTOR + length) & MASK
    return format(total, "016x")


def median_ns(lower, ranges, samples):
    times = []
    for sample in range(WARM_UPS + samples):
        start = time.thread_time_ns()
        lower()
        if sample >= WARM_UPS:
            times.append(time.thread_time_ns() - start)
    return statistics.median(times) / ranges


def main():
    case = json.load(sys.stdin)
    regions = []
    placements = {}
    for layer, group, stride, size, segments, base, physical in case["layers"]:
        regions.append(Region(layer, group, stride, size, tuple(map(tuple, segments))))
        placements[layer] = (base, physical)
    planner = Planner(regions, placements)
    group = case["group"]
    blocks = case["blocks"]
    objects = case["objects"]
    plans = [(block, group) for block in blocks]
    lines = planner.lines(group)
    ranges = len(lines) * len(blocks)
    made = lower_to_objects(planner, plans)
    device, host, length, key = lower_to_columns(lines, blocks, objects)
    result = {
        "python": sys.version.split()[0],
        "ranges": ranges,
        "objects_checksum": checksum(
            (r.address, r.object_offset, r.length) for block in made for r in block
        ),
        "columns_checksum": checksum(
            (device[i], host[i] - objects[key[i]], length[i]) for i in range(ranges)
        ),
    }
    del made, device, host, length, key
    samples = case["samples"]
    result["objects_ns"] = median_ns(lambda: lower_to_objects(planner, plans), ranges, samples)
    result["columns_ns"] = median_ns(
        lambda: lower_to_columns(lines, blocks, objects), ranges, samples
    )
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
