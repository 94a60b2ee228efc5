#!/usr/bin/env bash
# Runs all four services in the nodes of a Slurm job, each service as a step, and one training run on them.
#
#   run.sh CONFIG.toml [OPTION]...       the arguments of `shoal run start`, --resume RUN among them
#
# The batch files beside it call it, from the root of the repository. They set the numbers:
#   LEARNER_NODES, GPUS_PER_LEARNER_NODE   nodes that train, and the ranks on each
#   GENERATORS, GPUS_PER_GENERATOR         engines, which fill the other nodes (with a single node: its other GPUs)
#   REWARDS                                reward services, beside the engines
# SHOAL_VENV (default .venv) has the environment, SHOAL_DATA_DIR (default runs) the folder of the runs. Both are on a
# file system that all nodes share. The services speak TLS among themselves, with certificates of this job's own.
set -euo pipefail
: "${LEARNER_NODES:?}" "${GPUS_PER_LEARNER_NODE:?}" "${GENERATORS:?}" "${GPUS_PER_GENERATOR:?}" "${REWARDS:?}"
# shellcheck source=/dev/null
source "${SHOAL_VENV:-.venv}/bin/activate"
export SHOAL_DATA_DIR=${SHOAL_DATA_DIR:-runs}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
learners=("${nodes[@]:0:LEARNER_NODES}")
generators=("${nodes[@]:LEARNER_NODES}")
((${#generators[@]})) || generators=("${learners[@]}")
export SHOAL_COORDINATOR=${learners[0]}:50050 RENDEZVOUS=${learners[0]}:29400
export LEARNER_NODES GPUS_PER_LEARNER_NODE
folder=$SHOAL_DATA_DIR/slurm-$SLURM_JOB_ID
mkdir -p "$folder"
export CERTIFICATES=$folder/certificates
shoal certs "$CERTIFICATES" --host "${learners[0]}" >"$folder/certificates.log"

# Starts a step in the background: step NAME NODES OPTION... -- COMMAND...; its output is in the data folder. Each of its
# commands is started again when it fails: nobody else would do it, and the others would wait for it until the job ends.
declare -A steps
step() {
    local name=$1 where=$2 options=()
    shift 2
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    srun --job-name="$name" --nodelist="$where" --mem=0 --kill-on-bad-exit=0 --unbuffered \
        --output="$folder/$name-%t.log" "${options[@]}" deploy/slurm/keep.sh "$@" &
    steps[$name]=$!
}

# Sends a signal to the processes of a step. (srun itself would answer SIGTERM by killing them.)
signal_step() {
    local id name
    while read -r id name; do
        # Slurm 22.05 reports an error of a step that it has signaled.
        [[ $name != "$2" ]] || scancel --signal="$1" "$id" 2>/dev/null || true
    done < <(squeue --steps --jobs="$SLURM_JOB_ID" --noheader --format='%i %j')
}

# Ends the steps: the coordinator first, while the workers can still write its checkpoint. Workers have a minute.
end() {
    trap '' TERM INT
    local name signal
    if [[ -n ${steps[coordinator]:-} ]]; then
        signal_step TERM coordinator
        wait "${steps[coordinator]}" || true
    fi
    [[ -z ${run:-} ]] || kill -TERM "$run" 2>/dev/null || true
    for signal in TERM KILL; do
        for name in learner generator reward; do
            signal_step "$signal" "$name"
        done
        for _ in {1..60}; do
            [[ -n $(jobs -pr) ]] || break 2
            sleep 1
        done
    done
}
trap end EXIT
trap 'exit 143' TERM INT

join() {
    local IFS=,
    echo "$*"
}

step coordinator "${learners[0]}" --nodes=1 --ntasks=1 --overlap --gpus=0 --cpus-per-task=4 -- \
    python -m services.coordinator --listen "$SHOAL_COORDINATOR" --tls-dir "$CERTIFICATES/coordinator" --grace-s 240 \
    --name "slurm-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"  # Runs of other jobs are resumed by their own.
# torchrun's agents otherwise keep a store that one which comes later is not told of, so no node could return.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Each task needs its own node's name, which only the step knows.
# shellcheck disable=SC2016
step learner "$(join "${learners[@]}")" --nodes="$LEARNER_NODES" --ntasks-per-node=1 --exact \
    --gpus-per-node="$GPUS_PER_LEARNER_NODE" --cpus-per-task="${CPUS_PER_LEARNER_NODE:-16}" -- \
    bash -c 'exec python -m torch.distributed.run --nnodes="$LEARNER_NODES" --nproc-per-node="$GPUS_PER_LEARNER_NODE" \
        --rdzv-backend=c10d --rdzv-id=learner --rdzv-endpoint="$RENDEZVOUS" --local-addr="$SLURMD_NODENAME" \
        --max-restarts=1000 --shutdown-timeout=270 -m services.learner --grace-s=240 --listen="$SLURMD_NODENAME:50051" \
        --tls-dir="$CERTIFICATES/learner"'
# shellcheck disable=SC2016
step generator "$(join "${generators[@]}")" --nodes="${#generators[@]}" --ntasks="$GENERATORS" --exact \
    --gpus-per-task="$GPUS_PER_GENERATOR" --cpus-per-task="${CPUS_PER_GENERATOR:-8}" -- \
    bash -c 'exec python -m services.generator --listen="$SLURMD_NODENAME:0" --tls-dir="$CERTIFICATES/generator"'
# shellcheck disable=SC2016
step reward "$(join "${generators[@]}")" --nodes="1-${#generators[@]}" --ntasks="$REWARDS" --overlap --gpus=0 --cpus-per-task=8 -- \
    bash -c 'exec python -m services.reward --listen="$SLURMD_NODENAME:0" --tls-dir="$CERTIFICATES/reward"'

until python -m shoal.rpc.healthcheck "$SHOAL_COORDINATOR" --tls-dir "$CERTIFICATES/coordinator"; do
    kill -0 "${steps[coordinator]}" 2>/dev/null || exit 1
    sleep 2
done
# In the background, so that a signal ends the wait.
shoal --tls-dir "$CERTIFICATES/operator" run start --watch --set weights.store_port=50052 \
    --set launch.num_learner_ranks=$((LEARNER_NODES * GPUS_PER_LEARNER_NODE)) "$@" &
run=$!
wait -n "$run" "${steps[@]}" || true
for name in "${!steps[@]}"; do
    if kill -0 "$run" 2>/dev/null && ! kill -0 "${steps[$name]}" 2>/dev/null; then
        echo "run.sh: all commands of the step $name have ended; see $folder/$name-*.log" >&2
        exit 1
    fi
done
wait "$run"
