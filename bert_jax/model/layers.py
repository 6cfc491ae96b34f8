"""Building blocks of the model: parameters with logical axes, dense layers, LayerNorm.

Shape suffixes: B batch, L length, Q queries of a row, D hidden size, F FFN width, H heads, K head
columns, P masked positions, E examples per row, V padded vocabulary.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from bert_jax.kernels.precision import precision_of
from bert_jax.model.architecture import Activation, EncoderArchitecture
from bert_jax.model.elementwise import gelu_tanh, layer_norm, rms_norm
from bert_jax.model.initial import Constant, Initial, TruncatedNormal
from bert_jax.model.row_key import fold_in
from bert_jax.model.section import Dtype, Execution
from bert_jax.parallel.gradient_sum import device_shares, summed_shares
from bert_jax.parallel.sharding_rules import LogicalAxes, constrain, whole

Array = jax.Array

ACTIVATIONS: Final[dict[Activation, Callable[[Array], Array]]] = {
    "gelu_tanh": gelu_tanh,
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def param(
    shape: Sequence[int], axes: LogicalAxes, initial: Initial, *, read: Dtype = "float32"
) -> nnx.Param:
    """Returns an abstract float32 parameter with a shape, logical axes and initial values.

    `read` is the dtype to which every use casts the parameter first.
    """
    abstract = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
    return nnx.Param(abstract, logical=axes, initial=initial, read=read)


class ParamUse(NamedTuple):
    """How a parameter is stored and how its gradient is summed."""

    stored: LogicalAxes  # logical axes that determine its sharding between steps
    gradient_dtype: Dtype  # dtype of the sum over devices

    @property
    def axes(self) -> LogicalAxes:
        """Logical axes of the parameter during a step."""
        return whole(self.stored)


class Linear(nnx.Module):
    """A linear map from the last axes of an activation to new axes.

    Parameters are float32. The product is computed in the execution's dtype. The kernel is always a
    matrix, [inputs, outputs]. If its last axis were the 64 columns of a head, a TPU would store it
    transposed, and transpose it for every use and update.
    """

    def __init__(
        self,
        shape: Sequence[int],
        axes: LogicalAxes,
        *,
        outputs: int = 1,
        deviation: float | None = None,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        """Creates the abstract kernel.

        Args:
            shape: sizes of the input axes, followed by the output axes.
            axes: logical axes of `shape`. The kernel is sharded along the first input axis and the
                first output axis.
            outputs: number of output axes.
            deviation: standard deviation of the initial kernel. The default is `initializer_range`.
            architecture: sizes of the model.
            execution: dtypes.
        """
        self.inputs = len(shape) - outputs
        sizes = math.prod(shape[: self.inputs]), math.prod(shape[self.inputs :])
        normal = TruncatedNormal(deviation or architecture.initializer_range)
        self.kernel = param(sizes, (axes[0], axes[self.inputs]), normal, read=execution.dtype)
        self.use = ParamUse((axes[0], axes[self.inputs]), execution.sum_dtype)
        self.outputs = tuple(shape[-outputs:])
        self.dtype: Dtype = execution.dtype

    def __call__(self, x: Array) -> Array:
        """Maps `x` [..., inputs] to [..., outputs], in the execution's dtype."""
        y = self.without_bias(x)
        return y.reshape(*y.shape[:-1], *self.outputs)

    def without_bias(self, x: Array) -> Array:
        """Returns the product without the bias. All output axes are flattened to one."""
        x = x.astype(self.dtype)
        flat = x.reshape(*x.shape[: x.ndim - self.inputs], -1)
        return project(flat, self.kernel[...], use=self.use)


class Dense(Linear):
    """A linear map with a bias."""

    def __init__(
        self, shape: Sequence[int], axes: LogicalAxes, *, outputs: int = 1, **options: Any
    ) -> None:
        """Creates the abstract parameters. The bias has the shape of the output axes."""
        super().__init__(shape, axes, outputs=outputs, **options)
        self.bias = param(self.outputs, axes[-outputs:], Constant(0.0))

    def __call__(self, x: Array) -> Array:
        """Maps `x` [..., inputs] to [..., outputs], in the execution's dtype."""
        return self.with_bias(self.without_bias(x))

    def with_bias(self, y: Array) -> Array:
        """Returns a product with the bias added.

        The bias is broadcast before it is cast, so that its gradient is summed in `gradient_dtype`.
        """
        y = y.reshape(*y.shape[:-1], *self.bias.shape)
        wide = self.bias[...].astype(self.use.gradient_dtype)
        return y + jnp.broadcast_to(wide, y.shape).astype(self.dtype)


def project(x: Array, kernel: Array, *, use: ParamUse) -> Array:
    """Returns ``x · kernel`` in the dtype of `x` [..., I], for a float32 kernel [I, O].

    Batch and length are flattened to one axis. If a gradient contracted two axes, XLA's CPU
    compiler would transpose the operands element by element, which takes 40% of the time of the
    FFN. The gradient of the kernel is computed in `use.gradient_dtype`. JAX's gradient would have
    the dtype of `x`, and XLA would sum it over devices in bfloat16 before the cast.
    """
    y: Array = _product(x.reshape(-1, x.shape[-1]), kernel, use)
    return y.reshape(*x.shape[:-1], -1)


def _product_forward(
    rows: Array, kernel: Array, use: ParamUse
) -> tuple[Array, tuple[Array, Array]]:
    kernel = placed(kernel, rows.dtype, use.axes)
    return _matmul(rows, kernel), (rows, kernel)


def _product_backward(
    use: ParamUse, kept: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    rows, kernel = kept
    return _matmul(gradient, kernel.T), gradient_of_kernel(rows, gradient, use)


def _matmul(rows: Array, matrix: Array) -> Array:
    """Returns the product in the dtype of both."""
    precision = precision_of(rows.dtype)
    return jnp.matmul(rows, matrix, precision=precision, preferred_element_type=rows.dtype)


_product = jax.custom_vjp(lambda *arguments: _product_forward(*arguments)[0], nondiff_argnums=(2,))
_product.defvjp(_product_forward, _product_backward)


def gradient_of_kernel(rows: Array, gradient: Array, use: ParamUse) -> Array:
    """Returns the gradient of the kernel of `project`, float32 [I, O].

    `rows` [N, I] is the operand of the product, and `gradient` [N, O] the gradient of the product.
    """

    def share(rows: Array, gradient: Array) -> Array:
        return jax.lax.dot_general(
            *(rows, gradient, (((0,), (0,)), ((), ()))),
            precision=precision_of(rows.dtype),
            preferred_element_type=use.gradient_dtype,
        )

    inputs, outputs = use.axes
    arguments = ("batch", inputs), ("batch", outputs)
    shares = device_shares(share, rows, gradient, arguments=arguments, axes=use.axes)
    return summed_shares(shares, use.stored).astype(jnp.float32)


def placed(param: Array, dtype: DTypeLike, axes: LogicalAxes) -> Array:
    """Casts a parameter, then gathers it for use. A gather in bfloat16 moves half the bytes."""
    if param.dtype != dtype or dtype == jnp.bfloat16:
        # Optimization barrier: without it XLA would repeat the cast, or the slice of a layer's
        # matrix from the stack, for each tile of the product.
        param = jax.lax.optimization_barrier(param.astype(dtype))
    return constrain(param, *axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project_each(x: Array, kernels: tuple[Array, ...], use: ParamUse) -> tuple[Array, ...]:
    """Returns ``x · kernel`` for `x` [B, L, I] and each kernel, float32 [I, O].

    The backward pass stacks the gradients along a leading axis for one product. So the gradient of
    `x` needs one sum over devices instead of one per kernel.
    """
    return _project_each_forward(x, kernels, use)[0]


def _project_each_forward(
    x: Array, kernels: tuple[Array, ...], use: ParamUse
) -> tuple[tuple[Array, ...], tuple[Array, tuple[Array, ...]]]:
    kernels = tuple(placed(kernel, x.dtype, use.axes) for kernel in kernels)
    rows = x.reshape(-1, x.shape[-1])
    each = (_matmul(rows, kernel) for kernel in kernels)
    return tuple(y.reshape(*x.shape[:-1], -1) for y in each), (x, kernels)


def _project_each_backward(
    use: ParamUse, kept: tuple[Array, tuple[Array, ...]], gradients: tuple[Array, ...]
) -> tuple[Array, tuple[Array, ...]]:
    x, kernels = kept
    rows = x.reshape(-1, x.shape[-1])
    stacked = jnp.stack(gradients).reshape(len(kernels), len(rows), -1)
    product = functools.partial(jnp.einsum, precision=precision_of(x.dtype))
    of_rows = product("sno,sio->ni", stacked, jnp.stack(kernels), preferred_element_type=x.dtype)

    def share(rows: Array, stacked: Array) -> Array:
        return product("ni,sno->sio", rows, stacked, preferred_element_type=use.gradient_dtype)

    inputs, outputs = use.axes
    arguments = ("batch", inputs), ("rest", "batch", outputs)
    shares = device_shares(share, rows, stacked, arguments=arguments, axes=("rest", *use.axes))
    # Sum each kernel separately: a reduce-scatter needs the sharded axis to be the first.
    of_kernels = (summed_shares(shares[:, at], use.stored) for at in range(len(kernels)))
    return of_rows.reshape(x.shape), tuple(each.astype(jnp.float32) for each in of_kernels)


project_each.defvjp(_project_each_forward, _project_each_backward)


class ScaledNorm(nnx.Module):
    """Layer normalisation without a bias, with float32 statistics (arXiv 1607.06450)."""

    def __init__(
        self,
        *,
        width: int | None = None,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        """Creates abstract parameters for vectors of `width` numbers. Default: `hidden_size`."""
        self.width = width or architecture.hidden_size
        # Not the sharded axis "embed": sharding so few elements costs more than it saves.
        self.scale = param((self.width,), ("hidden",), Constant(1.0))
        self.eps = architecture.layer_norm_eps
        self.dtype = execution.dtype
        self.fused = execution.norm == "fused"

    def __call__(self, x: Array) -> Array:
        """Normalises `x` [..., D]. Returns the execution's dtype."""
        scale = self.scale[...]
        return layer_norm(x, scale, jnp.zeros_like(scale), self.eps, self.dtype)


class RmsNorm(ScaledNorm):
    """Normalisation by the root mean square, which subtracts no mean (arXiv 1910.07467)."""

    def __call__(self, x: Array) -> Array:
        """Normalises `x` [..., D]. Returns the execution's dtype."""
        return rms_norm(x, self.scale[...], self.eps, self.dtype)


class LayerNorm(ScaledNorm):
    """Layer normalisation with a bias."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bias = param((self.width,), ("hidden",), Constant(0.0))

    def __call__(self, x: Array) -> Array:
        """Normalises `x` [..., D]. Returns the execution's dtype."""
        return layer_norm(x, self.scale[...], self.bias[...], self.eps, self.dtype)


@jax.custom_vjp
def add_bias(y: Array, bias: Array) -> Array:
    """Returns ``y + bias`` for `y` [N, V] and `bias` [V].

    The gradient of the bias is a product with ones. For a vocabulary, XLA's sum over rows would
    take as long as the projection on a CPU. The ones have eight rows, because the TPU compiler
    turns a product with one row into a sum.
    """
    return y + bias


def _add_bias_forward(y: Array, bias: Array) -> tuple[Array, None]:
    return add_bias(y, bias), None


def _add_bias_backward(_: None, gradient: Array) -> tuple[Array, Array]:
    ones = jnp.ones((8, gradient.shape[0]), gradient.dtype)
    precision = precision_of(gradient.dtype)
    return gradient, jnp.matmul(ones, gradient, precision=precision)[0]


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def gather_positions(
    x_BLD: Float[Array, "batch length width"], positions_BQ: Int[Array, "batch queries"]
) -> Float[Array, "batch queries width"]:
    """Returns the vectors at the given positions of each row."""
    return jnp.take_along_axis(x_BLD, positions_BQ[..., None], axis=1)


def subkey(key: Array | None, index: int) -> Array | None:
    """Derives the `index`-th key from `key`. Returns None for None."""
    return None if key is None else fold_in(key, index)
