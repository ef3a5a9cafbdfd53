"""Losses, the local steps that make them small, and the server's steps over several
models.

The modules, from what algorithms call down to the arithmetic:

    losses        cross-entropy, logistic and squared loss, and ADMM's z-update
    server        FedAvg, FedAdam, FedYogi and FedDemonAdam, as pure functions
    estimators    scikit-learn's estimators, read into torch modules
    jacobians     the derivatives of every row's outputs by every weight
    descent       `Descent`: a model and its optimizer, moved towards a target or by a
                  gradient that comes from another party
    chains        models whose gradients are written out, in vectors that hold all
                  parameters side by side
    written_out   the arithmetic of these models, as functions that TorchScript compiles
    kernels       the same arithmetic in few GPU kernels of our own
    buffers       memory that is used again from step to step
    execution     compiled functions, CUDA graphs, and numbers on their way from a GPU

What always holds: the way in which a step is computed (autograd, written out, compiled,
replayed) changes no model and no checkpoint beyond rounding. Compiled or interpreted,
a function gives the same bits. No function draws a random number without a generator
or a seed that its caller passed.
"""
