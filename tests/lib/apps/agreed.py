"""A contract that agents import; who does it is not known here."""

from settled import EffectContract

capture_payment = EffectContract(name="capture_payment", operation_id=lambda a: f"invoice:{a['invoice_id']}:capture")
