"""An advantage estimator and a policy loss; each module names its source."""
