"""The likelihood of one trial: probabilities of its categories and counts, and densities of its numbers given them."""
