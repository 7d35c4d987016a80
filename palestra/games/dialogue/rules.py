"""The rules of a protocol as tensors.

Letters: R roles, V verifiers, T rounds, C channels, K variants, F flags of a role's actions.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from palestra.games.dialogue.protocol import VERDICTS, Protocol


class Rules:
    """The tensors of a protocol. Those by round have a last row, T, for a dialogue that is over.

    spoken: by role, the numbers of the channels in which it ever speaks. speaks: bool (T + 1, K, R, C). active,
    decides: bool (T + 1, K, V), whether a verifier has its turn, and whether a decision counts. legal_flags: by role,
    its legal actions, bool (T + 1, K, F). payoffs: float32 (K, 3^V, 2, R), by the verdicts as digits and the label.
    paid_for: by verifier, the numbers of the roles that get `go_on` when it goes on. sides: by prover who sees it, the
    verdict for which it argues, int64 (K,).
    """

    def __init__(
        self, protocol: Protocol, spoken: Mapping[str, list[int]], num_tokens: int, device: torch.device
    ) -> None:
        self.spoken = spoken
        roles, verifiers, channels = protocol.roles, protocol.verifiers, protocol.channels
        T, K, R, V = protocol.max_rounds, protocol.num_variants, len(roles), len(verifiers)
        self.speaks = torch.zeros(T + 1, K, R, len(channels), dtype=torch.bool, device=device)
        self.active, self.decides = (torch.zeros(T + 1, K, V, dtype=torch.bool, device=device) for _ in range(2))
        for t, k in protocol.moments():
            for (r, role), (c, channel) in product(enumerate(roles), enumerate(channels)):
                self.speaks[t, k, r, c] = protocol.speaks(role, channel, t, k)
            for v, verifier in enumerate(verifiers):
                self.active[t, k, v] = protocol.is_active(verifier, t, k)
                self.decides[t, k, v] = protocol.may_decide(verifier, t, k)
        self.payoffs = torch.zeros(K, 3**V, 2, R, device=device)
        for number, verdicts in enumerate(product(VERDICTS, repeat=V)):
            by_verifier = dict(zip(verifiers, verdicts, strict=True))
            for k, label, (r, role) in product(range(K), (0, 1), enumerate(roles)):
                self.payoffs[k, number, label, r] = protocol.reward(role, by_verifier, label, k)
        self.legal_flags = {role: self._legal_flags(role, roles, verifiers, num_tokens) for role in roles}
        self.paid_for = [[roles.index(role) for role in protocol.paid_for(verifier)] for verifier in verifiers]
        self.sides = {
            role: torch.tensor([protocol.side(role, k) for k in range(K)], device=device)
            for role in roles
            if protocol.sees_side(role)
        }

    def _legal_flags(self, role: str, roles: Sequence[str], verifiers: Sequence[str], num_tokens: int) -> Tensor:
        """Return the legal actions of a role in each round of each variant: bool (T + 1, K, F)."""
        says = self.speaks[:, :, roles.index(role), self.spoken[role]].unsqueeze(3)  # (T + 1, K, own, 1)
        choices = torch.cat([says.expand(-1, -1, -1, num_tokens), ~says], dim=3).flatten(2)
        if role not in verifiers:
            return choices
        may = self.decides[:, :, verifiers.index(role)].unsqueeze(2)
        return torch.cat([choices, may, may, torch.ones_like(may)], dim=2)
