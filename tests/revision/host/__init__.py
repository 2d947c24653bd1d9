"""What a host without a GPU lacks and sglang asks for, so that tests can use real modules and real
model classes.

`models.build` is the way in; tests get it as the fixture `build_model`.
"""
