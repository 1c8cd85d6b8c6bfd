"""tbnum in the frameworks that own the training loop: one module each, one line each.

    tbnum.integrations.lightning.NumericsCallback       a Callback of Lightning's Trainer
    tbnum.integrations.transformers.NumericsCallback    a TrainerCallback of Transformers' Trainer
    tbnum.integrations.accelerate.wrap                  for a loop of one's own around an Accelerator

    tbnum.integrations.wandb.forward                    scalars and events in a W&B run,
    tbnum.integrations.mlflow.forward                   in an MLflow run,
    tbnum.integrations.trackio.forward                  in a Trackio run

Each framework's finds the optimizers, the scaler, the model and the framework's own TensorBoard log, and hands them to
`tbnum.wrap`, which does everything. Each needs its framework, which `pip install 'tbnum[lightning]'` and so on brings.
"""
