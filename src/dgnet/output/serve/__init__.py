"""`dgnet serve`: rollouts, probes and gradients of one run over HTTP."""
