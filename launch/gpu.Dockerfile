# moejax for NVIDIA GPUs; the libraries of CUDA come with JAX, the driver is the machine's.
# docker build -f launch/gpu.Dockerfile -t moejax:gpu .
# With other extras of pyproject.toml, for gs:// as --out: --build-arg EXTRAS=cuda13,gs
FROM python:3.11-slim
WORKDIR /moejax
# Dependencies first: they change less often than the code.
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY moejax/__init__.py moejax/__init__.py
ARG EXTRAS=cuda13
RUN pip install --no-cache-dir ".[$EXTRAS]" -c constraints/python3.11.txt
COPY . .
RUN pip install --no-cache-dir --no-deps .
ENTRYPOINT ["python", "-m", "moejax"]
