"""Mistakes in who meets whom, in past selves, in games on a board, and in what is measured by enumeration."""

from tests.mutants.mutant import mutants

SEATING = "kinds/games/test_seating.py"
BOARDS = "games/test_boards.py"
EXPLOITS = "evaluation/test_exploitability.py"
RATINGS = "evaluation/test_ratings.py"

SELF_PLAY = [
    *mutants(
        "kinds/games/seating.py",
        SEATING,
        ("sitters = {role: players[self.parts.config.roles[role]] for role in roles}", "sitters = players"),
        ("past_selves[here.start : here.stop, index] = past", "pass"),
        ("script.past_self(past)", "script.past_self(max(script.kept))"),
        ("opt_steps[name] // each.interval]", "opt_steps[name]]"),
        ("replica.of_leader(\"a past self\", copied(state))", "replica.of_leader(\"a past self\", state)"),
        ("for oldest in list(kept)[: -config.num_kept]:", "for oldest in list(kept)[config.num_kept :]:"),
        ("if block.pairing[role] in names:", "if True:"),
        ("/meets/{met.block}/{met.role}\"), kept[-1])", "/meets/{met.block}/{met.role}\"), 0)"),
        ("num).double().numpy()", "1).double().repeat(num).numpy()"),
        ("[block.pairing[role] == learner for role in roles]", "[True for role in roles]"),
        ("_add(self.scores[learner], met, new[1:3])", "pass"),
        ("self.news[learner], found = {}, dict[str, Any]()", "found = dict[str, Any]()"),
        ("if contests and set(block.pairing.values()) != {learner}:", "if contests:"),
        ("{past: script.kept[past] for past in who}", "{past: script.kept[max(script.kept)] for past in who}"),
        ("start, stop = max(worlds.start - first, 0), min(worlds.stop - first, num)", "start, stop = 0, num"),
        ("if not met.role or met.role in blocks[met.block].shares}", "}"),
    ),
    *mutants(
        "kinds/games/meetings.py",
        SEATING,
        ("round(each.share * num_worlds))", "int(each.share * num_worlds))"),
        ("worlds.start + n * len(worlds) // config.num_seated", "worlds.start + n"),
        ("if abs(total * num - num) > TOLERANCE * len(meets):", "if total > 1:"),
        ("if player.num_seated > player.num_kept:", "if False:"),
        ("round(size) < past.num_seated", "False"),
        ("if learner not in (sitters := each.pairing.values()):", "if False and (sitters := each.pairing.values()):"),
    ),
    *mutants(
        "players/past.py",
        SEATING,
        ("lost = (contests - won +", "lost = (won +"),
        ("(lost / lost.max()) ** self.power", "(lost / lost.max())"),
        ("self.game.observation_transform = deepcopy(game.observation_transform)", "pass"),
        ("then: dict[str, Any] = deepcopy(dict(state[\"player\"]))", "then: dict[str, Any] = dict(state[\"player\"])"),
        ("self.player.policy(self.explores)", "self.player.policy(False)"),
        ("turn = number + self.game.roles.index(self.role) * (number // len(selves))", "turn = number"),
        ("torch.where(before == 0,", "torch.where(before >= 0,"),
    ),
    *mutants(
        "rollouts/seated.py",
        SEATING,
        ("self.held[sitters[0].worlds] = True", "self.held[:] = True"),
        ("if name.startswith(prefix)}", "}"),
        ("torch.zeros_like(self.sums)\n        return", "self.sums\n        return"),
        ("masked_fill(~ended.unsqueeze(1), 0.0)", "masked_fill(ended.unsqueeze(1), 0.0)"),
    ),
    *mutants(
        "rollouts/fused.py",
        SEATING,
        ("deciding = deciding & self.held", "deciding = deciding"),
        ("worlds.memory[role] = {name: _keep(left, value, 0) for", "worlds.memory[role] = {name: value for"),
        ("worlds.truncated_pending |= changed.any(dim=1) & (worlds.lengths > 0)", "pass"),
    ),
    *mutants(
        "run/checkpoints.py",
        SEATING,
        ("copies |= manifest.once.get(\"past\", {}).keys()", "pass"),
        ("if \"past\" in self.once:  #", "if False:  #"),
    ),
    *mutants(
        "games/boards.py",
        BOARDS,
        ("torch.tensor([1, M, M + 1, M + 2], device=device)", "torch.tensor([1, M - 1, M + 1, M + 2], device=device)"),
        ("while length < self.num_connected:", "while length + 1 < self.num_connected:"),
        ("& self.highest).logical_not()", "& self.lowest).logical_not()"),
        ("is_over = is_won | ((first | second) == self.full) |", "is_over = is_won |"),
        ("own, other = self.roles if role == \"first\" else self.roles[::-1]", "own, other = self.roles"),
    ),
    *mutants(
        "players/scripted_boards.py",
        BOARDS,
        ("torch.where(blocks.any(1, keepdim=True), blocks, legal)", "legal"),
        ("torch.where(wins.any(1, keepdim=True), wins, good)", "good"),
    ),
    *mutants(
        "games/positions.py",
        EXPLOITS,
        ("sign = 1.0 - 2.0 * mover", "sign = torch.ones_like(mover)"),
        (".masked_fill(~self.legal[wave], -torch.inf)", ""),
        ("child[legal], reward[legal] = children, torch.cat(gains)", "child[legal] = children"),
        ("if len(known) > max_positions:", "if False:"),
        ("if bool((deciding.sum(dim=1) != ~over).any()):", "if False:"),
        ("if len(uneven := moved[1][moved[1].sum(dim=1) != 0]):", "if len(uneven := moved[1][:0]):"),
    ),
    *mutants(
        "evaluation/exploitability.py",
        EXPLOITS,
        ("float((row @ self.payoffs).min())", "float((row @ self.payoffs).max())"),
        ("table = torch.cat([-payoffs.T,", "table = torch.cat([payoffs.T,"),
    ),
    *mutants(
        "evaluation/ratings.py",
        RATINGS,
        ("num_resamples)\n        found.append", "num_resamples) * 2\n        found.append"),
        ("won.new_zeros(int(numbers.max()) + 1, 2).index_add_(0, numbers, won)", "won"),
        ("for each in met], num_others=1)", "for each in met], num_others=0)"),
        ("if len(resampled) >= FEWEST_DETERMINED * NUM_RESAMPLES:", "if len(resampled):"),
        ("terms + step / changes.clamp(min=1.0).unsqueeze(1)", "terms + step"),
    ),
]  # fmt: skip
