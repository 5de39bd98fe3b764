"""`usher call`: places real calls with a stock client (aiortc) and judges what comes back."""
