"""Local steps of any network as captured CUDA graphs, several clients at a time on streams."""
