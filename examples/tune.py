"""Tune a learning rate with Optuna on validation data, and prune trials that learn nothing.

Needs ``pip install optuna``. The test accuracy is read once, of the best trial: it was not chosen.
"""

import sys

import optuna

import fedbench


def objective(trial: optuna.Trial) -> float:
    """Validation accuracy of a short run with the rate that the trial suggests."""
    rate = trial.suggest_float("lr", 1e-3, 1.0, log=True)

    def prune(round: fedbench.Round) -> None:
        if round.loss is not None:
            trial.report(-round.loss, round.step)
        if trial.should_prune():
            raise optuna.TrialPruned

    scenario = fedbench.Scenario(
        protocol=f"fedavg:lr={rate}", model="micro", clients=10, rounds=6, eval_every=2, epochs=1
    )
    record = fedbench.play(scenario, callbacks=[prune])
    trial.set_user_attr("test accuracy", record.result.accuracy)
    return record.result.validation_accuracy or 0.0


def main(trials: int = 20) -> optuna.Study:
    """Run the study, print its best trial and return the study."""
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=trials)
    best = study.best_trial
    print(f"lr={best.params['lr']:.3g}: validation {best.value:.3f}, {best.user_attrs}")
    return study


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
