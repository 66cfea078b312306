"""Efficiency as the field notes report it: throughput against concurrency 1 (5.8 × at 8: 73 %).

Speed-up = throughput at a concurrency ÷ throughput at concurrency 1; efficiency = speed-up ÷ concurrency.
Both are compared within a server start, so that a start that is faster everywhere does not widen the
interval.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from servelab.stats import mean_interval


@dataclass(frozen=True)
class Efficiency:
    """speedup and its interval (None with one start that both were measured on); efficiency = speedup / concurrency.

    base: the concurrency that it is measured against. starts: how many starts have both.
    """

    concurrency: float
    base: float
    speedup: float
    low: float | None
    high: float | None
    starts: int

    @property
    def efficiency(self) -> float:
        """1 means that throughput follows concurrency."""
        return self.speedup * self.base / self.concurrency


def efficiencies(rows: pd.DataFrame, metric: str = "output_throughput_tok_s") -> list[Efficiency]:
    """One for each concurrency that shares a start with the lowest one; [] without a point at concurrency 1.

    rows: usable points of one server configuration and load shape. The interval is Student's, of the
    logarithm of the ratio in each start (geometric means of repeats), so it needs two starts.
    """
    usable = rows[rows[metric].notna() & (rows[metric] > 0)]
    if not (usable["concurrency"] == 1).any():
        return []
    logs = pd.Series(np.log(usable[metric].to_numpy(dtype=float)), index=usable.index)
    table = (
        logs.groupby([usable["concurrency"].astype(float), usable["session_id"].astype(str)]).mean().unstack()
    )
    found = []
    for concurrency, values in table.iterrows():
        ratios = (values - table.loc[1.0]).dropna().to_numpy(dtype=float)
        if not ratios.size:
            continue
        interval = mean_interval(ratios) if float(str(concurrency)) != 1.0 else None
        found.append(
            Efficiency(
                float(str(concurrency)),
                1.0,
                math.exp(float(ratios.mean())),
                None if interval is None else math.exp(interval.low),
                None if interval is None else math.exp(interval.high),
                int(ratios.size),
            )
        )
    return found
