# moejax for TPUs: Google Kubernetes Engine, Cloud TPU.
# docker build -f launch/tpu.Dockerfile -t moejax:tpu .
# With other extras of pyproject.toml, for 8-bit products and gs:// as --out: --build-arg EXTRAS=tpu,quantization,gs
FROM python:3.11-slim
WORKDIR /moejax
# Dependencies first: they change less often than the code.
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY moejax/__init__.py moejax/__init__.py
ARG EXTRAS=tpu
RUN pip install --no-cache-dir ".[$EXTRAS]" -c constraints/python3.11.txt
COPY . .
RUN pip install --no-cache-dir --no-deps .
ENTRYPOINT ["python", "-m", "moejax"]
