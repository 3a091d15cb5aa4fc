"""Files of queues, as `berth queue apply` reads them."""
