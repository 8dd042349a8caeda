"""The older name of what sends a part of an answer."""

from partita.worker.archive.ts.handler_utils.utils import send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]
