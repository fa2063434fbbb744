"""How training programs count what they print as MFU, where their rule is sound. Per token, forward and backward.

A rule that counts something twice or not at all has no place here. Left out for that: litgpt's estimate_flops, which
takes attention five times instead of three; NeMo's deepseekv3, which leaves out the output head; FlopCounterMode of
torch with fused attention, which counts none on a CPU and 3.5 instead of 3 times the forward pass on a GPU.
"""

from __future__ import annotations


def llm_c(params: int, halved: int) -> int:
    """Return 6N + 6*L*d*T with every parameter in N; ``halved``: the products under a mask, 6*L*H*h*T.

    Source: llm.c, train_gpt2.cu, gpt2_estimate_mfu.
    Worked: GPT-2 small, N = 124,439,808, T = 1024 -> 803,261,952.
    """
    return 6 * params + halved


def nanogpt(params: int, position: int, products: int) -> int:
    """Return 6*(N - N_position) + 12*L*H*h*T: the embedding of positions is left out, that of tokens is the head.

    Source: nanoGPT, model.py, get_num_params and estimate_mfu.
    Worked: its GPT-2 small, no biases, V = 50304, T = 1024 -> 854,770,176.
    """
    return 6 * (params - position) + products


def matmul(matmul: int, products: int) -> int:
    """Return 6*N_matmul + 12*L*H*h*T: only weights that are multiplied, an output head included even if it is tied.

    Sliding windows count min(w, T) keys. For models like Llama it is NeMo's llama3 too.

    Source: nanochat, gpt.py, estimate_flops; torch's FlopCounterMode with attention that is written out.
    Worked: GPT-2 small, T = 1024 -> 854,438,400; Llama-3-8B, T = 8192 -> 57,912,852,480.
    """
    return 6 * matmul + products


def megatron(matmul: int, halved: int) -> int:
    """Return 6*N_matmul + 6*L*H*h*T: the head with its padded vocabulary, the products halved by the mask.

    In a model with experts Megatron-LM leaves the router's weights out, MaxText counts them; here they are counted.
    Multi-token prediction is not: it adds 6*(layer + 2*d^2 + head) for each further token that is predicted.

    Source: Megatron-LM, training.py, num_floating_point_operations; MaxText, calculate_tflops_training_per_device.
    Worked: Llama-3-8B, T = 8192 -> 51,470,401,536; Mixtral 8x7B, T = 4096 -> 79,712,747,520; DeepSeek-V3, T = 4096 ->
    250,449,887,232.
    """
    return 6 * matmul + halved


def torchtitan(params: int, looked_up: int, products: int) -> int:
    """Return 6*(N - N_in) + 12*L*H*h*T, N_in an input embedding that is not tied to the head; norms stay in.

    Source: torchtitan, models/utils.py.
    Worked: Llama-3-8B, N = 8,030,261,248, N_in = 525,336,576, T = 8192 -> 57,914,449,920.
    """
    return 6 * (params - looked_up) + products


def levanter(matmul: int, products: int, softmax: int) -> int:
    """Return 6*N_matmul + 12*L*H*h*T + 9*L*H*T: levanter counts the forward pass only, this is three times that.

    Source: levanter, lm_flops_per_token.
    Worked: Llama-3-8B, T = 8192 -> 57,988,349,952.
    """
    return 6 * matmul + products + softmax
