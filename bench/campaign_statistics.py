#!/usr/bin/env python3
"""What the rules of a campaign get wrong and what they can find, on generated campaigns; prints Markdown.

bench/campaign_statistics.py [CAMPAIGNS]     default 20000, about a minute on one core
"""

from __future__ import annotations

import math
import sys

from seatfleet.campaign.simulation import Scenario, coverage, false_verdicts, seed_rule_rate, verdict_rates
from seatfleet.campaign.stats import design_power
from seatfleet.campaign.verdicts import Verdict

NOISE = {
    "equal noise": {},
    "control 3 times noisier": {"control_sd": 0.03},
    "studied arms 3 times noisier": {"studied_sd": 0.03},
    "studied arms 10 times noisier": {"studied_sd": 0.1},
    "5 sd of linear drift": {"drift": 0.05},
}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    cells, families = seed_rule_rate(count, seed=1)
    exact = 1 - 2 / math.pi * math.atan(math.sqrt(2) / math.sqrt(1.5))
    print(f"Two control boots, one boot per arm, |arm - mean(off)| > |off_A - off_B|: fires on noise in {cells:.1%} of")
    print(f"cells (exactly {exact:.1%}) and in {families:.1%} of families of three arms.\n")
    print("| noise | order | false WIN or LOSS per family | coverage of 95 % intervals |\n|---|---|---|---|")
    for name, settings in NOISE.items():
        for mode in ("palindrome", "confirm"):
            scenario = Scenario(mode=mode, **settings)
            wrong = false_verdicts(scenario, count, seed=2)
            print(f"| {name} | {mode} | {wrong:.2%} | {coverage(scenario, count, seed=3):.1%} |")
    for arms in (("k1",), ("k1", "k2")):
        scenario = Scenario(arms=arms, studied_sd=0.03)
        wrong = false_verdicts(scenario, count, seed=2)
        print(f"| {len(arms)} noisy arm(s) | palindrome | {wrong:.2%} | {coverage(scenario, count, seed=3):.1%} |")
    print("\n| order | effect, in sd between boots | found (one comparison) |\n|---|---|---|")
    for mode, control, arm in (("palindrome", 3, 2), ("confirm", 4, 3)):
        power = design_power(control, arm, 3)
        for effect in (power.floor, power.mde80, 5.0):
            scenario = Scenario(mode=mode, effect=0.01 * effect, cells=1, family=1)
            print(f"| {mode} | {effect:.2f} | {verdict_rates(scenario, count, seed=4)[Verdict.WIN]:.1%} |")


if __name__ == "__main__":
    main()
