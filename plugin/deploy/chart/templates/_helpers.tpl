{{/* The name of the DaemonSet that serves the GPU, and of the ConfigMap of its settings. */}}
{{- define "tegra-device-plugin.name" -}}
{{ eq .Values.api "dra" | ternary "tegra-dra-driver" "tegra-device-plugin" }}
{{- end }}

{{/* The image's name. */}}
{{- define "tegra-device-plugin.imageName" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Whether it is pulled: by default not with Docker, as it is loaded into each node's engine. */}}
{{- define "tegra-device-plugin.pullPolicy" -}}
{{ .Values.image.pullPolicy | default (eq .Values.containerRuntime "docker" | ternary "Never" "IfNotPresent") }}
{{- end }}

{{/* Both, in a container. */}}
{{- define "tegra-device-plugin.image" -}}
image: {{ include "tegra-device-plugin.imageName" . | quote }}
imagePullPolicy: {{ include "tegra-device-plugin.pullPolicy" . }}
{{- end }}

{{/* The common part of all pods. */}}
{{- define "tegra-device-plugin.pod" -}}
nodeSelector:
  {{- merge (dict (printf "jetson-k3s.github.io/%s" .Values.api) "true") .Values.nodeSelector | toYaml | nindent 2 }}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
enableServiceLinks: false
terminationGracePeriodSeconds: 10
securityContext:
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* Annotations of pods, by the port of their metrics. A change of the settings renews the pods. */}}
{{- define "tegra-device-plugin.annotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
{{- with .Values.config }}
jetson-k3s.github.io/config-sha256: {{ toYaml . | printf "%s\n" | sha256sum }}
{{- end }}
{{- end }}

{{/* Resources of a container: the user's values, or measured values. */}}
{{- define "tegra-device-plugin.resources" -}}
{{- if .Values.resources }}
{{- toYaml .Values.resources }}
{{- else -}}
requests:
  cpu: 10m
  memory: {{ .memory }}
limits:
  memory: 128Mi
{{- end }}
{{- end }}

{{/* A container's port of metrics. */}}
{{- define "tegra-device-plugin.ports" -}}
- name: metrics
  containerPort: {{ .port }}
  {{- if .Values.metricsOnHost }}
  hostPort: {{ .port }}
  {{- end }}
{{- end }}

{{/* The path of a container's settings. */}}
{{- define "tegra-device-plugin.configFile" -}}
- name: CONFIG_FILE
  value: /etc/tegra-device-plugin/config.yaml
{{- end }}

{{/* The directory of the memory limit, if needed. Containers mount its files, so it has the same path on the host. */}}
{{- define "tegra-device-plugin.limitDirectory" -}}
{{- if or (eq .Values.api "dra") (dig "sharing" "units" dict .Values.config) }}
{{- dig "flags" "plugin" "gpuLimitDir" "/var/lib/tegra-gpu-limit" .Values.config }}
{{- end }}
{{- end }}

{{/* The mounts of the settings. */}}
{{- define "tegra-device-plugin.configMount" -}}
{{- if .Values.config }}
- name: config
  mountPath: /etc/tegra-device-plugin
  readOnly: true
{{- end }}
{{- end }}

{{/* The volumes of the settings and of the memory limit. */}}
{{- define "tegra-device-plugin.configVolumes" -}}
{{- if .Values.config }}
- name: config
  configMap:
    name: {{ include "tegra-device-plugin.name" . }}
{{- end }}
{{- with include "tegra-device-plugin.limitDirectory" . }}
- name: gpu-limit
  hostPath:
    path: {{ . }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}

{{/* The preset of another system: `preset` is a name, or a list of one name. */}}
{{- define "tegra-device-plugin.preset" -}}
{{- $preset := dig "sharing" "units" "preset" "none" .Values.config }}
{{- if kindIs "slice" $preset }}
{{- $preset = first $preset }}
{{- end }}
{{- $preset }}
{{- end }}
