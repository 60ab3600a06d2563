# moejax for CPUs: nodes of a Slurm cluster, a laptop.
# docker build -f launch/cpu.Dockerfile -t moejax:cpu .
FROM python:3.11-slim
WORKDIR /moejax
# Dependencies first: they change less often than the code.
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY moejax/__init__.py moejax/__init__.py
RUN pip install --no-cache-dir '.[cpu,slurm]' -c constraints/python3.11.txt
COPY . .
RUN pip install --no-cache-dir --no-deps .
ENTRYPOINT ["python", "-m", "moejax"]
