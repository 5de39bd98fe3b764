"""The custom resources, as typed models; `crds/*.yaml` are generated from them."""
