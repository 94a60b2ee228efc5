"""Transfer of weights from the learner to the generators.

`manifest` lists the tensors, `rendezvous` and `board` bring the members together, `group` is the collective, and
`transfer` sends, receives and hashes. All but `manifest` and `rendezvous` import torch when called.
"""
