{{- /*
cnat.customize changes an object as the values say. It writes nothing.
*/}}
{{- define "cnat.customize" }}
{{- $values := .root.Values }}
{{- $labels := .object.metadata.labels }}
{{- include "cnat.label" (dict "root" .root "labels" $labels) }}
{{- if eq .object.kind "Deployment" }}
{{- include "cnat.deployment" . }}
{{- else if eq .object.kind "NetworkPolicy" }}
{{- if $values.namespace }}
{{- $_ := set .object.spec "ingress" list }}
{{- else }}
{{- $from := list }}
{{- range $values.metrics.scrapers }}
{{- $from = append $from (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) }}
{{- end }}
{{- $_ := set (first .object.spec.ingress) "from" $from }}
{{- end }}
{{- else if and (eq .object.kind "RoleBinding") (eq .object.metadata.name "cnat-metrics") }}
{{- $subjects := list }}
{{- range $values.metrics.scrapers }}
{{- $subjects = append $subjects (dict "apiGroup" "rbac.authorization.k8s.io" "kind" "Group" "name" (printf "system:serviceaccounts:%s" .)) }}
{{- end }}
{{- $_ := set .object "subjects" (append $subjects (last .object.subjects)) }}
{{- else if has .object.kind (list "PrometheusRule" "ServiceMonitor") }}
{{- $_ := merge $labels $values.monitoring.labels }}
{{- end }}
{{- end }}

{{- define "cnat.label" }}
{{- $_ := set .labels "app.kubernetes.io/instance" .root.Release.Name }}
{{- $_ := set .labels "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set .labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- end }}

{{- define "cnat.deployment" }}
{{- $values := .root.Values }}
{{- $template := .object.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- $_ := set .object.spec "replicas" $values.replicas }}
{{- $_ := set $template.metadata.labels "app.kubernetes.io/instance" .root.Release.Name }}
{{- $_ := merge $template.metadata.labels $values.podLabels }}
{{- with $values.podAnnotations }}
{{- $_ := set $template.metadata "annotations" . }}
{{- end }}
{{- $image := printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion) }}
{{- with $values.image.digest }}
{{- $image = printf "%s@%s" $values.image.repository . }}
{{- end }}
{{- $_ := set $container "image" $image }}
{{- with $values.image.pullPolicy }}
{{- $_ := set $container "imagePullPolicy" . }}
{{- end }}
{{- $_ := set $container "resources" $values.resources }}
{{- $_ := set $pod "nodeSelector" $values.nodeSelector }}
{{- range $field := list "imagePullSecrets" "tolerations" "affinity" "priorityClassName" }}
{{- with get $values $field }}
{{- $_ := set $pod $field . }}
{{- end }}
{{- end }}
{{- $args := $container.args }}
{{- if $values.namespace }}
{{- $args = list "-v=2" (printf "-namespace=%s" $values.namespace) "-leader-elect" "-leader-elect-identity=$(POD_NAME)" "-hold-permissions" "-health-probe-bind-address=:8081" }}
{{- $_ := set $container "ports" (list (dict "name" "health" "containerPort" 8081)) }}
{{- end }}
{{- if $values.restarts.annotations }}
{{- $args = append $args "-restart-annotations" }}
{{- end }}
{{- $_ := set $container "args" (concat $args $values.args) }}
{{- end }}
