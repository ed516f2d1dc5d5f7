"""Failure scenarios as stories to watch, each with a rule of the engine in force and switched off.

rules      rules of the engine switched off from outside
drawing    pure: a picture of the replicas as text and as SVG
scene      a stage, and the steps that a story shows of it
telling    play a story; what came of it; the transcript as text, facts and one drawing
truncation, membership, failover    the stories
"""
