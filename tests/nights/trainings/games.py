"""Trainings whose loss is no likelihood: ``python games.py policy --steps 20000``, or ``gan``. A line per step.

A policy gradient wanders about 0; generator and discriminator play against each other and neither loss falls.
"""

# ruff: noqa: T201 - a script, which prints

import argparse
import time

import torch
from torch import nn


def policy(steps: int) -> None:
    """Learn to push a point back to the middle: REINFORCE with a moving baseline."""
    actor = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    place = torch.randn(16, 2, generator=generator)
    usual = 0.0
    before = time.perf_counter()
    for step in range(1, steps + 1):
        chosen = torch.distributions.Categorical(logits=actor(place))
        push = torch.multinomial(chosen.probs, 1, generator=generator)[:, 0]
        speed = place[:, 1] + 0.2 * (push * 2 - 1) + 0.05 * torch.randn(16, generator=generator)
        after = torch.stack([place[:, 0] + 0.1 * speed, 0.98 * speed], 1)
        reward = -after[:, 0].square()
        usual = 0.99 * usual + 0.01 * reward.mean().item()
        loss = -(chosen.log_prob(push) * (reward - usual)).mean() - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lost = after[:, 0].abs() > 3
        place = torch.where(lost[:, None], torch.randn(16, 2, generator=generator), after).detach()
        now = time.perf_counter()
        print(f"step: {step}, loss: {loss.item():.4f}, dt: {now - before:.2g}, reward: {reward.mean().item():.3f}")
        before = now


def gan(steps: int) -> None:
    """Learn eight clusters on a circle; the printed loss is the generator's."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    makes = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    said = nn.functional.binary_cross_entropy_with_logits
    yes, no = torch.ones(64, 1), torch.zeros(64, 1)
    before = time.perf_counter()
    for step in range(1, steps + 1):
        angle = torch.randint(8, (64,)) * 0.785398
        real = 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(64, 2)
        fake = maker(torch.randn(64, 4))
        judged = said(judge(real), yes) + said(judge(fake.detach()), no)
        judges.zero_grad()
        judged.backward()
        judges.step()
        loss = said(judge(fake), yes)
        makes.zero_grad()
        loss.backward()
        makes.step()
        now = time.perf_counter()
        print(f"step: {step}, loss: {loss.item():.4f}, dt: {now - before:.2g}, d_loss: {judged.item():.3f}")
        before = now


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["policy", "gan"])
    parser.add_argument("--steps", type=int, default=20000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    {"policy": policy, "gan": gan}[options.kind](options.steps)
