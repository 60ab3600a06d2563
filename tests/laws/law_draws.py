"""Laws and designs drawn by a ``random.Random``, or by the one of ``hypothesis.strategies.randoms``."""

import dataclasses

from moejax.laws.design import Design


def any_value(sign, chance):
    value = chance.uniform(0.05, 1.5)
    return -value if sign == "-" or (sign == "any" and chance.random() < 0.5) else value


def any_law(cls, chance):
    drawn = {}
    for f in dataclasses.fields(cls):
        if f.metadata.get("static"):
            continue
        sign = f.metadata["sign"]
        count = {"a_i": 2, "b_i": 3, "c_i": 1}.get(f.metadata["symbol"])
        one = any_value(sign, chance)
        drawn[f.name] = one if count is None else tuple(any_value(sign, chance) for _ in range(count))
    for start, most in (("experts_start", "experts_maximum"), ("ratio_start", "ratio_maximum")):
        if start in drawn:
            drawn[most] = drawn[start] + chance.uniform(1.0, 300.0)
    return cls(**drawn)


def any_design(chance):
    active, top_k = 10 ** chance.uniform(7, 11), chance.randint(1, 16)
    return Design(
        params_total=active * chance.uniform(1, 64),
        params_active=active,
        params_embedding=active * chance.uniform(0, 0.5),
        tokens=10 ** chance.uniform(9, 13),
        unique_tokens=10 ** chance.uniform(8, 13),
        flops=10 ** chance.uniform(18, 26),
        num_experts=float(top_k * chance.randint(2, 64)),
        top_k=float(top_k),
        num_shared_experts=float(chance.randint(0, 4)),
        model_dim=float(chance.randint(256, 8192)),
        num_layers=float(chance.randint(4, 80)),
        expert_hidden=float(chance.randint(128, 8192)),
        columns={"loss": chance.uniform(0.5, 6.0)},
    )
