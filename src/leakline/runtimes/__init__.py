"""Where a federation runs: in this process or its workers (`local`); on Flower in a later extra."""
