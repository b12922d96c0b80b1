"""An EAGLE-3 drafter's forward in numpy, in float64, one row at a time.

Written from the published description (arXiv 2503.01840 and the conventions that the serving engines share), not from Aerie's
own source: it is the oracle that both of Aerie's instantiations are compared with. Readable first, slow on purpose.

Row i pairs the target's feature of position i with token i+1 and predicts token i+2. At step s the row is fed token i+1+s and the
drafter's own output of step s-1, stands at RoPE position i+s, and attends to the step-0 keys of rows 0..i and to its own keys of
the steps 1..s.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Drafter:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float
    feature_norm: str = "none"  # "none", "concat" (input_norm), "per_tap" (fc_norm.i)
    norm_before_residual: bool = False
    norm_output: bool = False  # feed rms(z, norm) back instead of z
    weights: dict = field(default_factory=dict)  # names of the speculators dialect, without ".weight"
    embedding: np.ndarray = None  # [V, hidden], the drafter's own or the target's
    head: np.ndarray = None  # [Vd, hidden]
    draft_to_target: np.ndarray = None  # [Vd] absolute target ids


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def rotate(vector, position, theta):
    """RoPE on one head, half-split pairs (j, j + d/2)."""
    half = vector.size // 2
    angle = position * theta ** (-np.arange(half) * 2.0 / vector.size)
    first, second = vector[:half], vector[half:]
    return np.concatenate([first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)])


def fuse(drafter, feature):
    """h of step 0 from one position's concatenated taps."""
    w = drafter.weights
    if drafter.feature_norm == "concat":
        feature = rms_norm(feature, w["input_norm"], drafter.eps)
    elif drafter.feature_norm == "per_tap":
        taps = sum(name.startswith("fc_norm.") for name in w)
        parts = np.split(feature, taps)
        feature = np.concatenate([rms_norm(part, w[f"fc_norm.{i}"], drafter.eps) for i, part in enumerate(parts)])
    return w["fc"] @ feature


def layer(drafter, e, h, position, past):
    """One row through the layer. `past` is a list of (keys, values) [kv_heads, head_dim] that the row sees; returns (head input,
    feedback, own keys and values)."""
    w = {name.removeprefix("layers.0."): value for name, value in drafter.weights.items()}
    d, group = drafter.head_dim, drafter.heads // drafter.kv_heads
    normed_h = rms_norm(h, w["hidden_norm"], drafter.eps)
    x = np.concatenate([rms_norm(e, w["input_layernorm"], drafter.eps), normed_h])
    q = (w["self_attn.q_proj"] @ x).reshape(drafter.heads, d)
    k = (w["self_attn.k_proj"] @ x).reshape(drafter.kv_heads, d)
    v = (w["self_attn.v_proj"] @ x).reshape(drafter.kv_heads, d)
    q = np.stack([rotate(head, position, drafter.rope_theta) for head in q])
    k = np.stack([rotate(head, position, drafter.rope_theta) for head in k])
    seen = past + [(k, v)]
    attended = []
    for head in range(drafter.heads):
        keys = np.stack([pair[0][head // group] for pair in seen])
        values = np.stack([pair[1][head // group] for pair in seen])
        scores = keys @ q[head] / np.sqrt(d)
        weights = np.exp(scores - scores.max())
        attended.append(weights @ values / weights.sum())
    y = (normed_h if drafter.norm_before_residual else h) + w["self_attn.o_proj"] @ np.concatenate(attended)
    u = rms_norm(y, w["post_attention_layernorm"], drafter.eps)
    z = y + w["mlp.down_proj"] @ (silu(w["mlp.gate_proj"] @ u) * (w["mlp.up_proj"] @ u))
    normed = rms_norm(z, w["norm"], drafter.eps)
    return normed, normed if drafter.norm_output else z, (k, v)


def unroll(drafter, tokens, features, rows, steps):
    """head_input and feedback [steps, len(rows), H], logits [steps, len(rows), Vd], predictions [steps, len(rows)] (target ids)."""
    last = max(rows)
    first = [layer_inputs_step0(drafter, tokens, features, i) for i in range(last + 1)]
    step0, cache = [], []
    for i, (e, h) in enumerate(first):
        head_input, feedback, pair = layer(drafter, e, h, i, cache)
        step0.append((head_input, feedback))
        cache = cache + [pair]
    out = np.zeros((steps, len(rows), drafter.hidden)), np.zeros((steps, len(rows), drafter.hidden))
    for column, i in enumerate(rows):
        head_input, feedback = step0[i]
        seen = cache[: i + 1]
        out[0][0, column], out[1][0, column] = head_input, feedback
        for s in range(1, steps):
            e = drafter.embedding[tokens[i + 1 + s]]
            head_input, feedback, pair = layer(drafter, e, feedback, i + s, seen)
            seen = seen + [pair]
            out[0][s, column], out[1][s, column] = head_input, feedback
    logits = out[0] @ drafter.head.T
    return out[0], out[1], logits, drafter.draft_to_target[logits.argmax(-1)]


def layer_inputs_step0(drafter, tokens, features, i):
    return drafter.embedding[tokens[i + 1]], fuse(drafter, features[i])
