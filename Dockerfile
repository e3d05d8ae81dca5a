# An image that runs `python run.py`, on the processor or on NVIDIA GPUs. docs/container.md says how to use it.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim

# What bodies and windows draw with where there is no display; the Makefile names them too.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1 libgl1-mesa-dri libglu1-mesa \
    && rm -rf /var/lib/apt/lists/*

# A package index of PyTorch, for its build for the processor alone or for another version of CUDA.
ARG TORCH_INDEX=
# Packages of the Pipfile's [dev-packages] that some commands use, such as "huggingface_hub s3fs".
ARG EXTRAS=huggingface_hub
WORKDIR /drlhp
COPY .ci/requirements.py .ci/
COPY Pipfile constraints.txt ./
RUN python .ci/requirements.py ${EXTRAS} > /tmp/requirements.txt \
    && PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" python -m pip install --no-cache-dir --root-user-action ignore \
        --constraint constraints.txt --requirement /tmp/requirements.txt

# .dockerignore lists what this copies.
COPY . .
# The user may have any number (`docker run --user`), so these places are open to all.
RUN useradd --uid 1000 --home-dir /home/drlhp --create-home drlhp \
    && mkdir runs \
    && chmod 777 runs /home/drlhp
ENV HOME=/home/drlhp MUJOCO_GL=egl PYTHONUNBUFFERED=1
USER drlhp
VOLUME /drlhp/runs
EXPOSE 8765
ENTRYPOINT ["python", "run.py"]
CMD ["--help"]
