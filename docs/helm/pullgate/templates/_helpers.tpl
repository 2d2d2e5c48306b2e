{{- define "pullgate.labels" -}}
app.kubernetes.io/name: pullgate-policyd
{{- end }}

{{- define "pullgate.dispatcherLabels" -}}
app.kubernetes.io/name: pullgate-dispatcher
{{- end }}

{{- define "pullgate.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The PolicydConfiguration. A change of it restarts the pods: its sum is an annotation of them. */}}
{{- define "pullgate.configuration" -}}
{{- $c := dict "apiVersion" "config.pullgate.dev/v1alpha1" "kind" "PolicydConfiguration" "policies" "/etc/pullgate/policies" }}
{{- $tls := dict "certFile" "/etc/pullgate/tls/tls.crt" "keyFile" "/etc/pullgate/tls/tls.key" "listen" ":9443" }}
{{- $_ := merge $c (dict "https" $tls "metrics" (dict "listen" ":9472")) }}
{{- with .Values.webhook.podTemplates }}{{ $_ = set $c "podTemplates" . }}{{ end }}
{{- if .Values.webhook.trustedRoot }}{{ $_ = set $c "trustedRoot" "/etc/pullgate/trusted-root/trusted_root.json" }}{{ end }}
{{- toYaml $c }}
{{ end }}

{{/* The metadata of a webhook configuration. */}}
{{- define "pullgate.registration" -}}
{{- if .Values.webhook.tls.certManager.enabled }}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/pullgate-policyd
{{- end }}
labels:
  {{- include "pullgate.labels" . | nindent 2 }}
{{- end }}

{{/* What the webhooks have in common; .path is where kube-apiserver sends reviews. */}}
{{- define "pullgate.webhook" -}}
{{- with .root.Values.webhook -}}
admissionReviewVersions: [v1]
clientConfig:
  {{- if not .tls.certManager.enabled }}
  caBundle: {{ .tls.caBundle | b64enc }}
  {{- end }}
  service:
    name: pullgate-policyd
    namespace: {{ $.root.Release.Namespace }}
    path: {{ $.path }}
    port: 443
failurePolicy: {{ .failurePolicy }}
matchPolicy: Equivalent
namespaceSelector:
  matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
    {{- append .excludeNamespaces $.root.Release.Namespace | uniq | sortAlpha | toYaml | nindent 4 }}
sideEffects: None
timeoutSeconds: {{ .timeoutSeconds }}
{{- end }}
{{- end }}
