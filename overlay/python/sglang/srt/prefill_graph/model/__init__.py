"""What a model is, as far as a prefill graph cares. Modules, low to high:

    multimodal    multimodal models whose text prefills are captured
    stack         where a model keeps its decoder layers
    layers        what each layer is, and which object its split op needs
    parted_weights  weights of which an update brings one part alone

A patch calls:

    layers.captures_mixer, layers.complete_layer_lists, layers.lacks_break, multimodal.has_images,
    multimodal.left_eager, multimodal.positions, parted_weights.complete,
    stack.embeds_by_name, stack.find_layer_stack, stack.inner_stack, stack.language_model.
"""
