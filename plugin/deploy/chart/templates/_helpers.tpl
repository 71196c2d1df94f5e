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

{{/* Gives the node agent the rights that its mode and policy need, and no more. Renders nothing. */}}
{{- define "tegra-device-plugin.chooseRights" }}
{{- $container := .container }}
{{- $context := $container.securityContext }}
{{- if ne .agent.mode "report" }}
{{- $_ := set $container "args" (append $container.args (printf "--mode=%s" .agent.mode)) }}
{{- end }}
{{- if ne .agent.qosPolicy "best-effort" }}
{{- $_ := set $container "args" (append $container.args (printf "--qos-policy=%s" .agent.qosPolicy)) }}
{{- end }}
{{- if or .agent.hostPID (eq .agent.mode "evict") }}
{{- /* Processes are ended, and on a Thor found, by the host's numbers. */}}
{{- $_ := set .pod "hostPID" true }}
{{- end }}
{{- if eq .agent.qosPolicy "burst-share" }}
{{- /* A device node of the host cannot be opened otherwise. */}}
{{- $_ := unset $context "allowPrivilegeEscalation" }}
{{- $_ := unset $context "capabilities" }}
{{- $_ := set $context "privileged" true }}
{{- else if eq .agent.mode "evict" }}
{{- $_ := set $context.capabilities "add" (list "KILL") }}
{{- end }}
{{- end }}
