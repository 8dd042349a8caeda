"""The protocol's messages as a table, as KServe and Triton define them, and its one service.

One line is one message: its name, then fields as number, name and type. A type may be ``repeated T``,
``map T`` (with string keys) or ``oneof NAME T``. Numbers and types are what makes two programs understand
each other; a test holds them against those of the real `tritonclient`.
"""

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"

MESSAGES = """
ServerLiveRequest:
ServerLiveResponse: 1 live bool
ServerReadyRequest:
ServerReadyResponse: 1 ready bool
ModelReadyRequest: 1 name string, 2 version string
ModelReadyResponse: 1 ready bool
ServerMetadataRequest:
ServerMetadataResponse: 1 name string, 2 version string, 3 extensions repeated string
ModelMetadataRequest: 1 name string, 2 version string
ModelMetadataResponse: 1 name string, 2 versions repeated string, 3 platform string,
  4 inputs repeated ModelMetadataResponse.TensorMetadata,
  5 outputs repeated ModelMetadataResponse.TensorMetadata
ModelMetadataResponse.TensorMetadata: 1 name string, 2 datatype string, 3 shape repeated int64

InferParameter: 1 bool_param oneof parameter_choice bool, 2 int64_param oneof parameter_choice int64,
  3 string_param oneof parameter_choice string, 4 double_param oneof parameter_choice double,
  5 uint64_param oneof parameter_choice uint64
InferTensorContents: 1 bool_contents repeated bool, 2 int_contents repeated int32,
  3 int64_contents repeated int64, 4 uint_contents repeated uint32, 5 uint64_contents repeated uint64,
  6 fp32_contents repeated float, 7 fp64_contents repeated double, 8 bytes_contents repeated bytes
ModelInferRequest: 1 model_name string, 2 model_version string, 3 id string, 4 parameters map InferParameter,
  5 inputs repeated ModelInferRequest.InferInputTensor,
  6 outputs repeated ModelInferRequest.InferRequestedOutputTensor, 7 raw_input_contents repeated bytes
ModelInferRequest.InferInputTensor: 1 name string, 2 datatype string, 3 shape repeated int64,
  4 parameters map InferParameter, 5 contents InferTensorContents
ModelInferRequest.InferRequestedOutputTensor: 1 name string, 2 parameters map InferParameter
ModelInferResponse: 1 model_name string, 2 model_version string, 3 id string, 4 parameters map InferParameter,
  5 outputs repeated ModelInferResponse.InferOutputTensor, 6 raw_output_contents repeated bytes
ModelInferResponse.InferOutputTensor: 1 name string, 2 datatype string, 3 shape repeated int64,
  4 parameters map InferParameter, 5 contents InferTensorContents
ModelStreamInferResponse: 1 error_message string, 2 infer_response ModelInferResponse

ModelConfigRequest: 1 name string, 2 version string
ModelConfigResponse: 1 config ModelConfig
ModelConfig: 1 name string, 2 platform string, 3 version_policy ModelVersionPolicy, 4 max_batch_size int32,
  5 input repeated ModelInput, 6 output repeated ModelOutput, 7 instance_group repeated ModelInstanceGroup,
  11 dynamic_batching oneof scheduling_choice ModelDynamicBatching,
  15 ensemble_scheduling oneof scheduling_choice ModelEnsembling, 17 backend string,
  19 model_transaction_policy ModelTransactionPolicy, 24 response_cache ModelResponseCache
ModelVersionPolicy: 1 latest oneof policy_choice ModelVersionPolicy.Latest
ModelVersionPolicy.Latest: 1 num_versions uint32
ModelInput: 1 name string, 2 data_type enum DataType, 4 dims repeated int64
ModelOutput: 1 name string, 2 data_type enum DataType, 3 dims repeated int64
ModelInstanceGroup: 1 name string, 2 count int32, 4 kind enum ModelInstanceGroup.Kind
ModelDynamicBatching: 1 preferred_batch_size repeated int32, 2 max_queue_delay_microseconds uint64
ModelEnsembling: 1 step repeated ModelEnsembling.Step
ModelEnsembling.Step: 1 model_name string, 2 model_version int64, 3 input_map map string,
  4 output_map map string
ModelTransactionPolicy: 1 decoupled bool
ModelResponseCache: 1 enable bool

ModelStatisticsRequest: 1 name string, 2 version string
ModelStatisticsResponse: 1 model_stats repeated ModelStatistics
ModelStatistics: 1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64,
  5 execution_count uint64, 6 inference_stats InferStatistics, 7 batch_stats repeated InferBatchStatistics,
  8 memory_usage repeated MemoryUsage, 9 response_stats map InferResponseStatistics
InferStatistics: 1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration,
  4 compute_input StatisticDuration, 5 compute_infer StatisticDuration, 6 compute_output StatisticDuration,
  7 cache_hit StatisticDuration, 8 cache_miss StatisticDuration
InferResponseStatistics: 1 compute_infer StatisticDuration, 2 compute_output StatisticDuration,
  3 success StatisticDuration, 4 fail StatisticDuration
InferBatchStatistics: 1 batch_size uint64, 2 compute_input StatisticDuration,
  3 compute_infer StatisticDuration, 4 compute_output StatisticDuration
StatisticDuration: 1 count uint64, 2 ns uint64
MemoryUsage: 1 type string, 2 id int64, 3 byte_size uint64

ModelRepositoryParameter: 1 bool_param oneof parameter_choice bool,
  2 int64_param oneof parameter_choice int64,
  3 string_param oneof parameter_choice string, 4 bytes_param oneof parameter_choice bytes
RepositoryIndexRequest: 1 repository_name string, 2 ready bool
RepositoryIndexResponse: 1 models repeated RepositoryIndexResponse.ModelIndex
RepositoryIndexResponse.ModelIndex: 1 name string, 2 version string, 3 state string, 4 reason string
RepositoryModelLoadRequest: 1 repository_name string, 2 model_name string,
  3 parameters map ModelRepositoryParameter
RepositoryModelLoadResponse:
RepositoryModelUnloadRequest: 1 repository_name string, 2 model_name string,
  3 parameters map ModelRepositoryParameter
RepositoryModelUnloadResponse:

TraceSettingRequest: 1 settings map TraceSettingRequest.SettingValue, 2 model_name string
TraceSettingRequest.SettingValue: 1 value repeated string
TraceSettingResponse: 1 settings map TraceSettingResponse.SettingValue
TraceSettingResponse.SettingValue: 1 value repeated string
LogSettingsRequest: 1 settings map LogSettingsRequest.SettingValue
LogSettingsRequest.SettingValue: 1 bool_param oneof parameter_choice bool,
  2 uint32_param oneof parameter_choice uint32, 3 string_param oneof parameter_choice string
LogSettingsResponse: 1 settings map LogSettingsResponse.SettingValue
LogSettingsResponse.SettingValue: 1 bool_param oneof parameter_choice bool,
  2 uint32_param oneof parameter_choice uint32, 3 string_param oneof parameter_choice string
"""

ENUMS = {
    "DataType": (
        *(
            "TYPE_INVALID",
            "TYPE_BOOL",
            "TYPE_UINT8",
            "TYPE_UINT16",
            "TYPE_UINT32",
            "TYPE_UINT64",
            "TYPE_INT8",
        ),
        *("TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING"),
        "TYPE_BF16",
    ),
    "ModelInstanceGroup.Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
}
"""Names of each enumeration's values, numbered from 0."""
