"""Everything that runs on NVIDIA FLARE: jobs, engines, provisioning."""
