{{/* The name of the DaemonSet that serves the GPU, and of the ConfigMap of its settings. */}}
{{- define "tegra-device-plugin.name" -}}
{{ eq .Values.api "dra" | ternary "tegra-dra-driver" "tegra-device-plugin" }}
{{- end }}

{{/* The image's name. */}}
{{- define "tegra-device-plugin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Mounts a directory of the host into the container of a pod. Renders nothing. */}}
{{- define "tegra-device-plugin.addDirectory" }}
{{- $container := first .pod.containers }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts .mount) }}
{{- $volume := dict "name" .mount.name "hostPath" (dict "path" .path "type" "DirectoryOrCreate") }}
{{- $_ := set .pod "volumes" (append .pod.volumes $volume) }}
{{- end }}

{{/* Gives the node agent its mode and policy, with the rights that they need and no more. Renders nothing. */}}
{{- define "tegra-device-plugin.chooseRights" }}
{{- $pod := .pod }}
{{- $container := .container }}
{{- $context := $container.securityContext }}
{{- if ne .agent.mode "report" }}
{{- $_ := set $container "args" (append $container.args (printf "--mode=%s" .agent.mode)) }}
{{- end }}
{{- if ne .agent.qosPolicy "best-effort" }}
{{- $_ := set $container "args" (append $container.args (printf "--qos-policy=%s" .agent.qosPolicy)) }}
{{- end }}
{{- if .agent.hostPID }}
{{- /* On a Thor processes are found by the host's numbers. */}}
{{- $_ := set $pod "hostPID" true }}
{{- end }}
{{- range $rights := list (index .rights .agent.mode) (index .rights .agent.qosPolicy) }}
{{- with $rights }}
{{- if .hostPID }}
{{- $_ := set $pod "hostPID" true }}
{{- end }}
{{- range $key, $value := .securityContext }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $context $key }}
{{- else }}
{{- $_ := set $context $key $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
