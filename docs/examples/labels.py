from palestra.algorithms.losses.loss import OnPolicyLoss
from palestra.config import UserConfig


class Supervised(OnPolicyLoss):
    heads, estimators = ("policy",), ("none",)

    class Config(UserConfig):
        pass

    def terms(self, batch):
        label = batch.observation["critic/label"][:, 0].long()  # 0: reject, 1: accept, as decisions are numbered
        return {"loss_label": -batch.mean(batch.distribution.log_prob(label))}
