"""What raised a prediction: attention rollout and gradient attribution."""
