"""Knows what other libraries call the keys of a run's config or of a sweep.

docs/coming-from.md says more about each of these names.
"""

from pydantic import BaseModel

from palestra.config.places import fields_under

THEIRS = {
    "actors.lag": "sync_interval max_policy_lag",
    "actors.num": "n_actors num_env_runners",
    "batch_size, num_minibatches": "batch",
    "begin_from": "fine_tune_from_scratch",
    "best": "load_best_model_at_end metric_for_best_model",
    "body.name": "use_shared_body",
    "body.policy.net_arch, body.value.net_arch, net.net_arch": "policy_kwargs",
    "box_actions.name": "squash_output",
    "callbacks": "stop_fn",
    "data": "train_split",
    "data.train.num_items": "overfit_batches limit_train_batches",
    "entropy_coefficient": "entropy entropy_weight ent_coef",
    "entropy_coefficient.name": "autotune",
    "entropy_coefficient.value": "alpha",
    "epochs": "fine_tune_on_all_previous_rollouts",
    "evaluations, evaluations.0.interval, evaluations.0.at_start": "test_scheme",
    "evaluations.0.batch_size": "per_device_eval_batch_size",
    "evaluations.0.interval": "eval_freq check_val_every_n_epoch val_check_interval eval_steps eval_strategy "
    "eval_interval evaluation_interval",
    "evaluations.0.num_games": "n_eval_episodes episode_per_test",
    "evaluators": "async_eval",
    "execution.device": "device use_cuda",
    "execution.loading.num_prefetched": "dataloader_prefetch_factor",
    "execution.loading.num_workers": "dataloader_num_workers iterator_train__num_workers",
    "exploration.epsilon": "er er_schedule set_eps",
    "exploration.epsilon.final": "exploration_final_eps end_e",
    "exploration.epsilon.initial": "start_e",
    "exploration.epsilon.num_steps": "exploration_fraction",
    "exploration.std": "action_noise",
    "gae_lambda": "lmbda",
    "game.arguments.max_episode_steps": "time_limit max_ep_len",
    "game.id": "env env_id env_name",
    "game.observation.normalize": "observation_scaler",
    "game.prompts": "system_prompt_template_path",
    "game.protocol.stance": "randomize_prover_stance",
    "game.rescale_state, game.rescale": "scale_observation",
    "game.reward": "reward_func",
    "gamma": "discount",
    "learning.batch_size": "per_device_train_batch_size",
    "learning.groups": "configure_optimizers",
    "learning.groups.0.learning_rate.name": "lr_scheduler_type",
    "learning.groups.0.optimizer.beta1": "adam_beta1",
    "learning.groups.0.optimizer.beta2": "adam_beta2",
    "learning.groups.0.optimizer.eps": "adam_epsilon",
    "learning.last_batch": "dataloader_drop_last",
    "learning.max_grad_norm": "gradient_clip_val",
    "learning.num_microbatches": "accumulate_grad_batches gradient_accumulation_steps",
    "learning.order": "iterator_train__shuffle",
    "learning.precision": "bf16 fp16",
    "learning_rate": "lr lr_schedule",
    "learning_rate.name": "anneal_lr",
    "net.net_arch, body.policy.net_arch, body.value.net_arch, policy_net.net_arch, critic_net.net_arch": "hidden_sizes",
    "loss.temperature": "weight_temp",
    "normalize_advantages": "normalize_advantage",
    "num_minibatches": "batch_size",
    "num_passes": "n_epochs update_epochs repeat_per_collect",
    "num_questions": "rollouts_per_iteration",
    "num_replicas, execution.num_processes": "devices",
    "num_worlds": "n_envs num_envs rollout_size",
    "num_worlds, rollout_length": "step_per_collect frames_per_batch",
    "objective.epsilon": "clip_range clip_coef eps_clip clip_epsilon",
    "output.display": "verbose",
    "output.keep_last": "save_top_k save_total_limit",
    "output.layer_norms": "layerwise_logging",
    "output.record.every": "log_every_n_steps logging_steps record_interval",
    "output.recorders": "tensorboard_log track use_tensorboard",
    "output.save.every": "every_n_train_steps save_steps save_interval",
    "output.transcripts": "save_transcripts",
    "palestra train run.yml --run": "model_dir",
    "players.prover.model.name": "model_name",
    "players.verifier.algorithm, players.verifier.updates": "freeze_agent",
    "players.verifier.algorithm.num_continuations": "num_responses_per_timestep",
    "players.verifier.num_retries": "num_invalid_generation_retries",
    "players.verifier.sampling.max_tokens": "max_tokens_per_message",
    "players.verifier.scripted": "is_random use_dummy_api",
    "policy_interval": "policy_delay policy_frequency",
    "replay_buffer.capacity": "memory_size buffer_size",
    "roles": "shared_model_group",
    "rollout_length": "n_steps train_freq num_steps train_frequency max_rollout_step collect_rollouts",
    "rollout_length, num_worlds, updates_per_turn": "opt_interval",
    "seed": "seed_everything",
    "search.generation": "perturbation_interval time_attr",
    "search.mutation.factors": "perturbation_factors",
    "search.mutation.redraw": "resample_probability",
    "search.quantile": "quantile_fraction",
    "select.floor": "weighting_minimum",
    "select.name": "rollout_selection_method weighted_sampling",
    "select.replacement": "weighting_use_replacement",
    "select.reward": "reward_threshold",
    "smoothing.max_noise": "noise_clip",
    "smoothing.std": "target_policy_noise",
    "space": "hyperparam_mutations",
    "stop.after": "timesteps total_steps steps num_env_steps num_episodes episodes total_timesteps max_epoch "
    "step_per_epoch total_frames max_epochs max_steps num_train_epochs num_train_steps num_iterations",
    "stop.after, stop.unit": "max_opts",
    "target.interval": "target_update_interval target_network_frequency steps_before_update_target",
    "target.interval, target.tau": "target_update_freq",
    "transitions.name": "estimation_step",
    "truth": "verifier_guess_replacement_proportion",
    "updates_per_turn": "gradient_steps steps_before_rollout update_per_step num_updates",
    "value_clip": "clip_range_vf clip_vloss",
    "value_coefficient": "vf_coef",
    "warm_start": "load_params",
    "warmup_env_steps": "learning_starts initial_rollout_size warmup_period",
}
"""What other libraries call a key, several keys that share its meaning, or what stands in no file."""

OURS = {name: tuple(ours.split(", ")) for ours, names in THEIRS.items() for name in names.split()}


def ours_of(key: str, model: type[BaseModel] | None) -> tuple[str, ...]:
    """Our names for what another library calls by the last word of `key`; () if none does, or if we call it so, too.

    model: that of the file, which may have none of these keys; None: any.
    """
    ours = OURS.get(key.removeprefix("--").rpartition(".")[2].replace("-", "_"), ())
    if model is not None and ours:
        known = {field for _, field, _ in fields_under(model)}
        if {"game", "arguments"} <= known:
            known.add("max_episode_steps")  # of an environment's arguments, which are no fields
        ours = tuple(each for each in ours if " " in each or each.rpartition(".")[2] in known)
    return ours
